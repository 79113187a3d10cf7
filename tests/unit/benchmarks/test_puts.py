"""The figures of single puts beside etcd, from rounds that are known."""

from dataclasses import replace

from benchmarks.peers import NOT_INSTALLED
from benchmarks.puts import IN_FLIGHT, PEER, Round, ratios, shown

OURS = Round(
    per_second=4_000.0, p50_ms=2.0, p99_ms=9.0, servers_us=300.0, client_us=60.0, others=0.5
)
THEIRS = replace(OURS, per_second=2_000.0, p50_ms=4.0, servers_us=100.0, client_us=20.0)
FOUND = {
    (lanes, name): [seen, replace(seen, per_second=2 * seen.per_second, p50_ms=seen.p50_ms / 2)]
    for lanes in (IN_FLIGHT, 1)
    for name, seen in (("8 partitions", OURS), ("1 partition", OURS), (PEER, THEIRS))
}


def test_ratios_are_taken_round_by_round_of_rates_in_flight_and_of_p50_one_at_a_time():
    """In the second round both were twice as fast: the ratio is the same."""
    told = ratios(FOUND)

    assert told["P5 rate / etcd, 8 partitions, goal 3.5"] == "2.00 (2.00 to 2.00)"
    assert told["P6 p50 / etcd, 1 partition, goal 1.0"] == "0.50 (0.50 to 0.50)"
    used = "processor time of a put / etcd, 8 partitions, one at a time"
    assert told[used] == "3.00 (3.00 to 3.00)"


def test_each_store_has_a_line_with_the_range_of_its_rates_and_the_load_of_others():
    """The range is what shows how much a busy machine moved the rates."""
    lines = {line["puts"]: line for line in shown(FOUND)["puts"]}

    assert len(lines) == len(FOUND)
    line = lines["etcd, one at a time"]
    assert (line["lowest"], line["a second"], line["highest"]) == ("2,000", "3,000", "4,000")
    assert (line["p50 ms"], line["servers us"], line["client us"]) == (3.0, 100, 20)
    assert line["others"] == "50%"


def test_peer_that_is_missing_is_told_and_nothing_is_divided():
    """Our own figures stay."""
    alone = {key: rounds for key, rounds in FOUND.items() if key[1] != PEER}

    assert set(ratios(alone).values()) == {NOT_INSTALLED}
    assert len(shown(alone)["puts"]) == len(alone)
