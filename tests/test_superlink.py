"""The SuperLink's shorter way through its layers answers what Flower's own way answers."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import httpx
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.main import create_app
from starlette.middleware.base import BaseHTTPMiddleware

from turnout.runtimes.flower.superlink import OFTEN, straight

PRIVATE, PUBLIC = generate_key_pairs()
KEY = public_key_to_bytes(PUBLIC)
PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}


def signed() -> dict[str, str]:
    """The headers of a node that proves who it is."""
    time = now().isoformat()
    proof = b64encode(sign_message(PRIVATE, time.encode())).decode()
    return {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(KEY).decode(), TIMESTAMP_HEADER: time,
            FLEET_HTTP_SIGNATURE_HEADER: proof}  # fmt: skip


Asked = tuple[str, bytes, dict[str, str]]
Answers = list[tuple[int, list[tuple[str, str]], bytes]]


def answers(app: object, asked: list[Asked]) -> Answers:
    """What the SuperLink's application says to some requests, one after another."""

    async def ask() -> list[httpx.Response]:
        way = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=way, base_url="http://here") as client:
            return [await client.post(path, content=body, headers=headers) for path, body, headers in asked]

    found = asyncio.run(ask())
    return [(answer.status_code, sorted(answer.headers.multi_items()), answer.content) for answer in found]


def test_answers_are_those_of_flowers_own_way(monkeypatch):
    app = create_app()
    entering = {
        "register": RegisterNodeFleetRequest(public_key=KEY),
        "activate": ActivateNodeRequest(public_key=KEY, heartbeat_interval=30),
    }
    requests = [
        (f"/v1/fleet/{what}-node", m.SerializeToString(), PROTOBUF | signed()) for what, m in entering.items()
    ]
    node = Node(node_id=ActivateNodeResponse.FromString(answers(app, requests)[1][2]).node_id)
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30).SerializeToString()
    look, stranger = (PullMessagesRequest(node=n).SerializeToString() for n in (node, Node(node_id=7)))
    asked = [  # path, body, headers; below, the status each must have
        ("/v1/fleet/send-node-heartbeat", beat, PROTOBUF | signed()),
        ("/v1/fleet/pull-messages", look, PROTOBUF | signed()),
        ("/v1/fleet/pull-messages", look, PROTOBUF),
        ("/v1/fleet/pull-messages", look, PROTOBUF | signed() | {FLEET_HTTP_SIGNATURE_HEADER: "AAAA"}),
        ("/v1/fleet/pull-messages", stranger, PROTOBUF | signed()),
        ("/v1/fleet/pull-messages", b"\xff\xff", PROTOBUF | signed()),
        ("/v1/fleet/pull-messages", look, signed()),
        ("/v1/runtime/get-nodes", b"", PROTOBUF),
    ]
    assert {path for path, _, _ in asked} <= OFTEN
    wanted = answers(app, asked)
    assert [status for status, _, _ in wanted] == [200, 200, 401, 401, 401, 400, 415, 401]
    monkeypatch.setattr(BaseHTTPMiddleware, "__call__", straight)
    assert answers(app, asked) == wanted
