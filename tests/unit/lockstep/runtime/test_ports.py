"""Free loopback ports."""

from lockstep.runtime.ports import choose_ports, is_free


def test_a_port_that_was_chosen_is_not_chosen_again_before_it_is_bound() -> None:
    chosen = [port for _ in range(20) for port in choose_ports(100)]
    assert len(set(chosen)) == len(chosen)
    assert all(20_000 <= port < 32_000 for port in chosen)


def test_when_most_were_given_the_oldest_are_given_again() -> None:
    for _ in range(150):
        ports = choose_ports(100)
        assert len(set(ports)) == 100
    assert any(is_free(port) for port in ports)
