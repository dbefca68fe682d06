"""Finds the network interface by which other nodes reach this one, where its name does not lead there."""

import fcntl
import ipaddress
import socket
import struct

# netdevice(7) of Linux: the IPv4 address of an interface; where in the answer it stands.
_SIOCGIFADDR, _NAME_BYTES, _ADDRESS = 0x8915, 16, slice(20, 24)
# An address of RFC 5737, which is nobody's: the way to it is the way out. Nothing is sent there.
_ELSEWHERE = "192.0.2.1"


def node_interface(master: str) -> str | None:
    """Name the interface that leads to the master, or out of this node; None if its name leads to it.

    gloo listens where the node's name points. Debian and Ubuntu let that be 127.0.1.1, at which other nodes
    find themselves.

    Args:
        master: the name or address of rank 0's node; on that node itself any way out is taken.

    Returns:
        None too if there is no way out, or it is not known.
    """
    own = _address_of(socket.gethostname())
    if own is not None and not _is_loopback(own):
        return None
    ways = (_source_of_way_to(target) for target in (master, _ELSEWHERE))
    return next((_interface_with(way) for way in ways if way is not None and not _is_loopback(way)), None)


def _address_of(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _source_of_way_to(target: str) -> str | None:
    """Give the own address that a packet to `target` would have: a datagram's socket only looks it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((target, 9))
        except OSError:
            return None
        source: str = asked.getsockname()[0]
        return source


def _interface_with(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            try:
                found = fcntl.ioctl(asked, _SIOCGIFADDR, request)[_ADDRESS]
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(found) == address:
                return name
    return None
