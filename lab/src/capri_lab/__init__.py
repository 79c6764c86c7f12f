"""The laboratory of capri: rivals, data sets, studies and reports.

>>> from capri import environments, kernels, simulate
>>> from capri_lab.rivals import rival
>>> kernel = kernels.RBF(lengthscale=0.3)
>>> world = environments.random_rkhs(kernel, contexts=4, actions=3)
>>> policy = rival("gp-ucb", world, kernel=kernel, horizon=20, simulation_seed=0)
>>> simulate(policy, world, 20).rounds
20
"""
