"""NUMA nodes from a made-up /sys: this machine may have one."""

from pathlib import Path

from headrace.launchers.numa import NumaNode, cores_of, read_nodes

meminfo = """Node {n} MemTotal:       65536 kB
Node {n} MemFree:        {free} kB
Node {n} Active(file):     100 kB
Node {n} Inactive(file):   200 kB
Node {n} Shmem:           5000 kB
"""


def add_node(directory: Path, number: int, cores: str, free_kib: int) -> None:
    path = directory / f"node{number}"
    path.mkdir()
    (path / "cpulist").write_text(cores + "\n")
    (path / "meminfo").write_text(meminfo.format(n=number, free=free_kib))


def test_nodes_have_their_cores_and_what_is_free(tmp_path: Path) -> None:
    add_node(tmp_path, 0, "0-1,4-5", 1000)
    add_node(tmp_path, 10, "2-3,6-7", 3000)
    add_node(tmp_path, 2, "", 9000)  # memory without cores
    (tmp_path / "possible").write_text("0-10")
    assert read_nodes(tmp_path, set(range(8))) == (
        NumaNode(0, (0, 1, 4, 5), 1300 << 10),
        NumaNode(10, (2, 3, 6, 7), 3300 << 10),
    )


def test_cores_that_this_process_may_not_use_are_left_out(tmp_path: Path) -> None:
    add_node(tmp_path, 0, "0-3", 1000)
    add_node(tmp_path, 1, "4-7", 1000)
    assert [node.cores for node in read_nodes(tmp_path, {2, 3})] == [(2, 3)]


def test_a_system_that_tells_nothing_is_one_node(tmp_path: Path) -> None:
    (node,) = read_nodes(tmp_path / "missing", {0, 3})
    assert node.cores == (0, 3)
    assert node.free_bytes > 0
    (tmp_path / "node0").mkdir()  # unreadable
    assert read_nodes(tmp_path, {0})[0].cores == (0,)


def test_a_list_of_cores_is_read_and_nonsense_is_not() -> None:
    assert cores_of("0-2,7") == [0, 1, 2, 7]
    assert cores_of("") == []
    assert cores_of("x,3-y,5") == [5]
