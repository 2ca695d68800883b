"""Who devices are: a name is bound to its registered key, a key to one name, and nothing unsigned is believed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import turnout as to
from flower_grid import HereGrid
from turnout.data.description import read_description
from turnout.deploy.answering import ClientDevice
from turnout.deploy.apps import GridLink
from turnout.deploy.device import DeviceSettings, make_device
from turnout.deploy.enrolment import Enrolled, first_description
from turnout.deploy.keys import RegisteredKeys, sign, signed_text, verified
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.running.records.records import Records
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, Parts


def made_keys(folder: Path, *names: str) -> list[Path]:
    """Private keys NAME.key with their public ones beside them."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.key" for name in names]
    for path in paths:
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "mine", "-f", path], check=True)
    return paths


def registered(folder: Path, keys: dict[str, Path]) -> RegisteredKeys:
    folder.mkdir()
    for name, key in keys.items():
        (folder / f"{name}.pub").write_text(key.with_suffix(".key.pub").read_text())
    return RegisteredKeys(folder)


def world(**runtime) -> to.Experiment:
    settings = {"clients": 3, "start_with": 2, "round_seconds": 5.0, "request_seconds": 2.0, "server_data": True}
    return to.Experiment(
        world=to.World(to.data.Digits(clients=3)),
        model=to.models.Logistic(),
        algorithm=to.Algorithm(to.Local(to.SGD(0.1), epochs=1, batch_size=50)),
        rounds=2,
        runtime=Flower(**settings | runtime),
    )


def device(given: to.Experiment, name: str, folder: Path, key: Path | None = None) -> ClientDevice:
    return make_device(given, DeviceSettings(client=name, folder=folder / f"disk-{name}-{key and key.stem}", key=key))


def served(
    given: to.Experiment, nodes: Iterable[ClientDevice], out: Path, keys: RegisteredKeys
) -> tuple[set[str], str]:
    """The names of those that joined, and why others were refused."""
    serve_experiment(GridLink(HereGrid(nodes)), given, out, keys)
    described = read_description(out)
    assert described is not None
    assert described.names is not None
    with Records.read(out / "records.sqlite") as records:
        joined = {described.names[client] for _, client, kind, _ in records.events() if kind == "join"}
        refused = records.rounds().get("refused", [])
    return joined, "; ".join(str(words) for words in refused if words)


class Lies(ClientDevice):
    """A device whose introduction says other things than it signed."""

    def __init__(self, device: ClientDevice, **lies: object):
        self.device, self.lies = device, lies

    def answer(self, parts: Parts) -> Parts:
        said = self.device.answer(parts)
        head = wire.unpack(said[HEAD])
        return said | {HEAD: wire.pack(head | {name: value for name, value in self.lies.items() if name in head})}


def test_a_name_is_bound_to_its_registered_key(tmp_path, capsys):
    """Who comes first with another registered key, or with none, does not become the client; who has the key does."""
    zero, one, thief, stranger = made_keys(tmp_path / "private", "0", "1", "2", "stranger")
    keys, given = registered(tmp_path / "devices", {"0": zero, "1": one, "2": thief}), world()
    wrong = [device(given, "0", tmp_path), device(given, "1", tmp_path, thief), device(given, "2", tmp_path, stranger)]
    wrong.append(Lies(device(given, "0", tmp_path, stranger), key="", signature=""))
    right = [device(given, "0", tmp_path, zero), device(given, "1", tmp_path, one)]
    joined, refused = served(given, [*wrong, *right], tmp_path / "run", keys)
    assert joined == {"0", "1"}
    assert refused.count("it has no key, and keys are registered here") == 2
    assert "its key is registered for '2', and it calls itself '1'" in refused
    assert "its key is not registered: put its public key into the server's folder devices as 2.pub" in refused
    assert "the server refuses 1: its key is registered for '2'" in capsys.readouterr().out


def test_one_key_has_one_name(tmp_path):
    """Without registered keys: a key that is bound to one name does not open another, however it is spelt."""
    (key,), given = made_keys(tmp_path / "private", "0"), world(start_with=1)
    nodes = [device(given, "0", tmp_path, key), device(given, "1", tmp_path, key)]
    public = key.with_suffix(".key.pub").read_text().strip()
    assert public.endswith(" mine")  # the same key with a remark
    nodes.append(Lies(device(given, "2", tmp_path, key), key=public))
    joined, refused = served(given, nodes, tmp_path / "run", RegisteredKeys())
    assert joined == {"0"}
    assert "its key is bound to the name '0', and it calls itself '1'" in refused
    assert "its signature is not that of its key" in refused


def test_a_key_that_is_registered_for_two_names_is_refused(tmp_path):
    zero, one = made_keys(tmp_path / "private", "0", "1")
    keys, given = registered(tmp_path / "devices", {"0": zero, "2": zero, "1": one}), world(start_with=1)
    nodes = [device(given, "0", tmp_path, zero), device(given, "1", tmp_path, one)]
    joined, refused = served(given, nodes, tmp_path / "run", keys)
    assert joined == {"1"}
    assert "its key is registered for '0', '2': make a key for each client" in refused


def test_the_description_is_that_of_a_verified_device(tmp_path):
    """A server without data: the node that answers first has no registered key, and its description counts nothing."""
    (key,) = made_keys(tmp_path / "private", "0")
    keys, given = registered(tmp_path / "devices", {"0": key}), world(start_with=1, server_data=False)
    other = given.but(**{"world.data": to.data.Synthetic(clients=3)})
    nodes = [device(other, "1", tmp_path), device(given, "0", tmp_path, key)]
    found = first_description(GridLink(HereGrid(nodes)), keys, most_bytes=1 << 20)
    assert found.labels == tuple(map(str, range(10)))  # those of the digits
    joined, refused = served(given, nodes, tmp_path / "run", keys)
    assert joined == {"0"}
    assert "it has no key" in refused


def test_the_description_is_signed(tmp_path):
    """A description that was changed on the way is not believed."""
    zero, one = made_keys(tmp_path / "private", "0", "1")
    keys, given = registered(tmp_path / "devices", {"0": zero, "1": one}), world(start_with=1, server_data=False)
    other = device(given.but(**{"world.data": to.data.Synthetic(clients=3)}), "0", tmp_path)
    nodes = [Lies(device(given, "0", tmp_path, zero), data=other.data), device(given, "1", tmp_path, one)]
    assert first_description(GridLink(HereGrid(nodes)), keys, most_bytes=1 << 20).input_shape == (1, 8, 8)
    joined, refused = served(given, nodes, tmp_path / "run", keys)
    assert joined == {"1"}
    assert "its signature is not that of its key" in refused


def test_a_signature_is_of_one_challenge_one_name_and_one_key(tmp_path):
    own_key, other_key = made_keys(tmp_path, "own", "other")
    text = signed_text("run", "challenge", "kitchen", "{}")
    (own, signature), (other, another) = sign(own_key, text), sign(other_key, text)
    assert verified(own, signature, text)
    assert not verified(own, another, text)
    assert not verified("", signature, text)
    for changed in (
        ("run", "old", "kitchen", "{}"),
        ("run", "challenge", "attic", "{}"),
        ("run", "challenge", "kitchen", ""),
    ):
        assert not verified(own, signature, signed_text(*changed))
    enrolled = Enrolled(5)
    assert enrolled.enter("kitchen", own, 10, node=1).number == 0
    assert enrolled.enter("kitchen", own, 10, node=2).node == 2  # the same key on another node
    assert enrolled.enter("kitchen", other, 10, node=3) == "kitchen is bound to another key"
    assert "bound to the name 'kitchen'" in enrolled.enter("attic", own, 10, node=4)
    assert [client.name for client in enrolled] == ["kitchen"]


def test_a_file_without_a_key_registers_nothing(tmp_path):
    (key,) = made_keys(tmp_path / "private", "0")
    keys = registered(tmp_path / "devices", {"0": key})
    (tmp_path / "devices" / "1.pub").write_text("no key at all")
    text = signed_text("run", "challenge", "1", "{}")
    public, signature = sign(key, text)
    assert "registered for '0'" in (keys.wrong("1", public, signature, text) or "")
    assert "it has no key" in (keys.wrong("1", "", "", text) or "")
