import torch

from kondo.lab.streams import Streams, sample_index


def test_a_seed_draws_the_same_whichever_seeds_share_its_block_and_in_any_order():
    block, alone = Streams([0, 3, 7]), Streams([3])
    late = alone.uniform("a", 50, (4,))
    for step in (0, 1, 49, 50):
        assert torch.equal(block.uniform("a", step, (4,))[1], alone.uniform("a", step, (4,))[0])
    assert torch.equal(late, Streams([3]).uniform("a", 50, (4,)))


def test_streams_of_other_names_steps_and_seeds_differ():
    streams = Streams([0, 1])
    a = streams.uniform("a", 0, (100,))
    for other in (streams.uniform("b", 0, (100,)), streams.uniform("a", 1, (100,)), a.flip(0)):
        assert (a - other).abs().mean() > 0.2


def test_uniforms_are_uniform_and_uncorrelated_over_steps_and_places():
    streams = Streams([5])
    draws = torch.stack([streams.uniform("x", step, (50,))[0] for step in range(2000)])  # 100,000 numbers
    assert abs(draws.mean() - 0.5) < 4 * (1 / 12) ** 0.5 / 100_000**0.5
    counts = torch.histc(draws, 100, 0, 1)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 160  # 99 degrees of freedom: p < 1e-4 beyond
    for one, two in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1])):
        correlation = torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]
        assert abs(correlation) < 4 / 98_000**0.5


def test_normals_have_unit_variance_and_integers_cover_their_range_evenly():
    streams = Streams([1])
    normal = streams.normal("n", 0, (100_000,))
    assert abs(normal.mean()) < 4 / 100_000**0.5
    assert abs(normal.var() - 1) < 4 * (2 / 100_000) ** 0.5
    counts = streams.below(7, "i", 0, (70_000,))[0].bincount(minlength=7)
    assert len(counts) == 7
    assert ((counts - 10_000).abs() < 4 * (10_000 * 6 / 7) ** 0.5).all()


def test_sampling_follows_the_probabilities_and_never_draws_an_impossible_index():
    probs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    draws = sample_index(probs.expand(100_000, 6), Streams([2]).uniform("u", 0, (100_000,))[0])
    share = draws.bincount(minlength=6) / 100_000
    assert ((share - probs).abs() <= 4 * (probs * (1 - probs) / 100_000).sqrt()).all()
    edge = torch.tensor([0.0, 1.0 - 2**-24])
    assert sample_index(probs.expand(2, 6), edge).tolist() == [1, 4]
