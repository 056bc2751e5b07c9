"""N nodes on one machine: network namespaces behind bridges, each link shaped to a rate.

    node 0 ── wire ═ n0 ─┐                              ┌─ n2 ═ wire ── node 2
                         ├─ rack0 ─ up0 ═ down0 ─ spine ┤      ...
    node 1 ── wire ═ n1 ─┘                              └─ ...

A `═` is a pair of virtual interfaces, with a token bucket (tbf) at either end, so a link has its
rate in each direction. All to the right of `wire` lies in a namespace of its own, the hub: the
machine's own interfaces, addresses and routes are neither used nor changed. With one rack there is
no spine.

Rates are those of frames: headers of Ethernet, IP and TCP are in them, as on a real link.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.network import rates
from benchmarks.network.guard import start_guard
from benchmarks.network.owner import Owner, remove, remove_stale
from benchmarks.network.refusal import Refused, check_machine
from benchmarks.network.shell import ip, needed, tc

WIRE = "wire"
"""The interface of every node: what GLOO_SOCKET_IFNAME has to be."""

MOST_NODES = 200
BURST_SECONDS = 0.001
LEAST_BURST = 16 * 1024
QUEUE_SECONDS = 0.1
LEAST_QUEUE = 1024 * 1024
"""Bytes. A bucket of at least a dozen frames, so that the rate is met; a queue that holds what
several senders have in flight towards one, so that little is sent twice."""

_serial = itertools.count()


@dataclass(frozen=True)
class Traffic:
    """Bytes through an interface, both ways: as its counters have them, frames and all."""

    sent: int
    received: int

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent - other.sent, self.received - other.received)


@dataclass(frozen=True)
class Counters:
    """The counters of all links at one moment.

    Args:
        nodes: of each node, as it sees them.
        racks: of each rack's up-link, as the rack sees it; empty with one rack.
    """

    nodes: tuple[Traffic, ...]
    racks: tuple[Traffic, ...]

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            tuple(now - before for now, before in zip(self.nodes, other.nodes, strict=True)),
            tuple(now - before for now, before in zip(self.racks, other.racks, strict=True)),
        )


class Laboratory:
    """A network on one machine, made by `laboratory`.

    Args:
        nodes: N.
        racks: as equal as N nodes allow; nodes of a rack are numbered in a row.
        prefix: of the namespaces' names.
    """

    def __init__(self, nodes: int, racks: int, prefix: str) -> None:
        self.nodes = nodes
        self.racks = racks
        self._prefix = prefix
        self._hub = f"{prefix}hub"
        self._shaped: dict[tuple[str, str], bool] = {}

    def namespace(self, node: int) -> str:
        """The name under which `ip netns` knows a node."""
        return f"{self._prefix}n{node}"

    @staticmethod
    def address(node: int) -> str:
        return f"10.77.0.{node + 1}"

    def within(self, node: int, command: Sequence[str]) -> list[str]:
        """`command` on a node, for `subprocess`."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def rack(self, node: int) -> int:
        return node * self.racks // self.nodes

    def shape(self, rate: int | None, up_link: int | None = None) -> None:
        """Gives links their rates; processes and connections stay.

        Args:
            rate: of every node's link, bits a second each way; `None` is as fast as memory.
            up_link: of every rack's.
        """
        for one in (rate, up_link):
            if one is not None:
                rates.checked(one)
        for node in range(self.nodes):
            self._shape(self.namespace(node), WIRE, rate)
            self._shape(self._hub, f"n{node}", rate)
        for rack in range(self.racks if self.racks > 1 else 0):
            self._shape(self._hub, f"up{rack}", up_link)
            self._shape(self._hub, f"down{rack}", up_link)

    def counters(self) -> Counters:
        """The bytes that have crossed every link since it was made."""
        found = json.loads(ip("-n", self._hub, "-json", "-statistics", "link", "show"))
        by_name = {link["ifname"]: link["stats64"] for link in found}
        # The hub's end of a node's link receives what the node sends.
        nodes = [by_name[f"n{node}"] for node in range(self.nodes)]
        racks = [by_name[f"up{rack}"] for rack in range(self.racks if self.racks > 1 else 0)]
        return Counters(
            tuple(Traffic(link["rx"]["bytes"], link["tx"]["bytes"]) for link in nodes),
            tuple(Traffic(link["tx"]["bytes"], link["rx"]["bytes"]) for link in racks),
        )

    @property
    def namespaces(self) -> list[str]:
        """All names, the hub's last."""
        return [*(self.namespace(node) for node in range(self.nodes)), self._hub]

    def build(self) -> None:
        """Makes the network, with unlimited rates."""
        with needed("network namespaces"):
            for name in self.namespaces:
                self._add_namespace(name)
        with needed("virtual interfaces (veth) and bridges"):
            for rack in range(self.racks):
                self._add_bridge(f"rack{rack}")
            if self.racks > 1:
                self._add_bridge("spine")
                for rack in range(self.racks):
                    self._add_up_link(rack)
            for node in range(self.nodes):
                self._add_node(node)
        with needed("token buckets (tbf)"):
            self.shape(rates.MOST, rates.MOST)
            self.shape(None, None)

    def _add_namespace(self, name: str) -> None:
        ip("netns", "add", name)
        # Without IPv6 nothing announces itself on the links, whose bytes are counted.
        quiet = "f=/proc/sys/net/ipv6/conf/default/disable_ipv6; [ ! -e $f ] || echo 1 > $f"
        ip("netns", "exec", name, "sh", "-c", quiet)
        ip("-n", name, "link", "set", "dev", "lo", "up")

    def _add_bridge(self, name: str) -> None:
        ip("-n", self._hub, "link", "add", "name", name, "type", "bridge")
        ip("-n", self._hub, "link", "set", "dev", name, "up")

    def _add_up_link(self, rack: int) -> None:
        up, down = f"up{rack}", f"down{rack}"
        ip("-n", self._hub, "link", "add", "name", up, "type", "veth", "peer", "name", down)
        self._plug(up, f"rack{rack}")
        self._plug(down, "spine")

    def _add_node(self, node: int) -> None:
        port, name = f"n{node}", self.namespace(node)
        peer = ("peer", "name", WIRE, "netns", name)
        ip("-n", self._hub, "link", "add", "name", port, "type", "veth", *peer)
        self._plug(port, f"rack{self.rack(node)}")
        ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", WIRE)
        ip("-n", name, "link", "set", "dev", WIRE, "up")

    def _plug(self, port: str, bridge: str) -> None:
        ip("-n", self._hub, "link", "set", "dev", port, "master", bridge, "up")

    def _shape(self, namespace: str, interface: str, rate: int | None) -> None:
        where = ("dev", interface, "root")
        if rate is None:
            if self._shaped.pop((namespace, interface), False):
                tc("-n", namespace, "qdisc", "delete", *where)
            return
        burst = max(LEAST_BURST, round(rate / 8 * BURST_SECONDS))
        queue = max(LEAST_QUEUE, round(rate / 8 * QUEUE_SECONDS))
        bucket = ("tbf", "rate", f"{rate}bit", "burst", str(burst), "limit", str(queue))
        tc("-n", namespace, "qdisc", "replace", *where, "handle", "1:", *bucket)
        self._shaped[namespace, interface] = True


@contextmanager
def laboratory(nodes: int, racks: int = 1) -> Generator[Laboratory]:
    """A laboratory, which is removed at the end, with all processes in it.

    Also after an exception, Ctrl-C, or the death of this process. What earlier owners have left all
    the same (their guard was killed with them) is removed first.

    Args:
        nodes: N, 1 to 200.
        racks: 1 to N.

    Raises:
        Refused: it can't be built here.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise Refused(f"{nodes} nodes can't be made; choose 1 to {MOST_NODES}")
    if not 1 <= racks <= nodes:
        raise Refused(f"{racks} racks for {nodes} nodes leave racks empty; choose 1 to {nodes}")
    check_machine()
    remove_stale()
    prefix = f"{Owner.this().prefix}{next(_serial)}-"
    guard = start_guard(prefix)
    made = Laboratory(nodes, racks, prefix)
    try:
        made.build()
        yield made
    finally:
        _remove(made, guard)


def _remove(made: Laboratory, guard: subprocess.Popen[bytes]) -> None:
    """Removes the laboratory; if Ctrl-C interrupts this, the guard completes it."""
    try:
        for name in made.namespaces:
            remove(name)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()
