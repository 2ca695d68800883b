"""The SuperLink's shorter ways answer what Flower's own ways answer."""

from __future__ import annotations

import asyncio
import sqlite3
from base64 import b64encode

import httpx
import pytest
import sqlalchemy
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore import sql_mixin
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.retry import http_retry
from flwr.superlink import extensions
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet import router
from starlette.middleware.base import BaseHTTPMiddleware

from turnout.deploy.shortcuts import NODES, SERVERS, shorten

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


def entered(app: object) -> Node:
    """A node that is connected to the SuperLink."""
    asked = {
        "register": RegisterNodeFleetRequest(public_key=KEY),
        "activate": ActivateNodeRequest(public_key=KEY, heartbeat_interval=30),
    }
    messages = [(f"/v1/fleet/{what}-node", m.SerializeToString(), PROTOBUF | signed()) for what, m in asked.items()]
    found = answers(app, messages)
    return Node(node_id=ActivateNodeResponse.FromString(found[1][2]).node_id)


def requests(node: Node) -> list[tuple[str, bytes, dict[str, str], int]]:
    """Path, body and headers, and the status of the answer."""
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30).SerializeToString()
    never = SendNodeHeartbeatRequest(node=node, heartbeat_interval=-1).SerializeToString()
    look, stranger = (PullMessagesRequest(node=n).SerializeToString() for n in (node, Node(node_id=7)))
    part = PullObjectRequest(node=node, run_id=5, object_id="0" * 64).SerializeToString()
    return [
        ("/v1/fleet/send-node-heartbeat", beat, PROTOBUF | signed(), 200),
        ("/v1/fleet/send-node-heartbeat", never, PROTOBUF | signed(), 400),
        ("/v1/fleet/pull-messages", look, PROTOBUF | signed(), 200),
        ("/v1/fleet/pull-messages", look, PROTOBUF, 401),
        ("/v1/fleet/pull-messages", look, PROTOBUF | signed() | {FLEET_HTTP_SIGNATURE_HEADER: "AAAA"}, 401),
        ("/v1/fleet/pull-messages", stranger, PROTOBUF | signed(), 401),
        ("/v1/fleet/pull-messages", b"\xff\xff", PROTOBUF | signed(), 400),
        ("/v1/fleet/pull-messages", look, signed(), 415),
        ("/v1/fleet/pull-object", part, PROTOBUF | signed(), 500),
        ("/v1/runtime/get-nodes", b"", PROTOBUF, 401),
    ]


@pytest.fixture
def put_back(monkeypatch):
    """What `shorten` changes is as before when a test has ended."""
    monkeypatch.setattr(BaseHTTPMiddleware, "__call__", BaseHTTPMiddleware.__call__)
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)


def test_answers_are_those_of_flowers_own_ways(put_back):
    """Statuses, headers and bodies: of what is right, and of what a stranger or a broken node sends."""
    stock = create_app()
    asked = requests(entered(stock))
    wanted = answers(stock, [request[:3] for request in asked])
    shorten()
    short = create_app()
    again = requests(entered(short))
    assert {path for path, *_ in again} <= NODES | SERVERS
    assert answers(short, [request[:3] for request in again]) == wanted
    assert [status for status, _, _ in wanted] == [status for *_, status in asked]


def test_a_node_comes_again_where_the_database_is_locked(put_back, monkeypatch, tmp_path):
    """Flower says that something went wrong inside, and its nodes end; told that it is busy, they ask again."""
    holder = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/state.db", connect_args={"timeout": 0})

    def write(request, state):
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE task (token)"))
        return PullObjectResponse(object_found=True)

    monkeypatch.setattr(router, "fleet_pull_object", write)
    shorten()
    app = create_app()
    asked = ("/v1/fleet/pull-object", PullObjectRequest(node=entered(app)).SerializeToString(), PROTOBUF | signed())
    ((busy, _, _),) = answers(app, [asked])
    assert busy in http_retry._RETRYABLE_STATUS_CODES
    holder.rollback()
    ((then, _, _),) = answers(app, [asked])
    assert then == 200


def test_the_database_is_waited_for(put_back):
    shorten()
    store = SqlObjectStore(":memory:")
    store.initialize()
    assert store.query("PRAGMA busy_timeout") == [{"timeout": 60000}]
