"""The interface by which other nodes reach this one."""

import socket

import pytest

from hydraulis.runtime.ranks import node_interface as module
from hydraulis.runtime.ranks.node_interface import node_interface

LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def test_a_host_name_of_the_node_needs_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.7")
    assert node_interface("127.0.0.1") is None


@pytest.mark.parametrize("own", ["127.0.1.1", None])
def test_an_unresolved_host_name_uses_the_interface_to_the_master(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.setattr(module, "_address_of", lambda _: own)
    # The one way that any machine has: for this test it leads to another node.
    monkeypatch.setattr(module, "_is_loopback", lambda address: address == "127.0.1.1")
    assert node_interface("127.0.0.1") == LOOPBACK


def test_on_the_master_the_interface_is_that_of_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_address_of", lambda _: "127.0.1.1")
    monkeypatch.setattr(module, "_interface_with", lambda address: f"that of {address}")
    ways = {"h0": "127.0.1.1", "192.0.2.1": "10.0.0.7"}
    monkeypatch.setattr(module, "_source_of_way_to", ways.get)
    assert node_interface("h0") == "that of 10.0.0.7"
    del ways["192.0.2.1"]
    assert node_interface("h0") is None


def test_an_unknown_host_has_no_interface() -> None:
    assert module._source_of_way_to("no.such.host.invalid") is None
    assert module._interface_with("10.255.255.254") is None
