"""Finds the network interface that other nodes can reach, if the node's own name does not lead to one."""

import fcntl
import ipaddress
import socket
import struct

# netdevice(7) of Linux: the request for an interface's IPv4 address, and the address's bytes in the reply.
_SIOCGIFADDR, _NAME_BYTES, _ADDRESS = 0x8915, 16, slice(20, 24)
# A documentation address of RFC 5737: the route to it is the route out of the node. No packet is sent.
_ELSEWHERE = "192.0.2.1"


def node_interface(master: str) -> str | None:
    """Return the interface of the route to the master, or of the route out of this node.

    gloo listens at the address of the node's name. On Debian and Ubuntu this is 127.0.1.1, which other nodes
    resolve to themselves.

    Args:
        master: Name or address of rank 0's node; on that node itself the route out is used.

    Returns:
        The interface's name; None if the node's name is no loopback address, or no interface is found.
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
    """Return the source address of a packet to `target`; connecting a datagram socket sends no packet."""
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
                continue  # The interface has no IPv4 address.
            if socket.inet_ntoa(found) == address:
                return name
    return None
