"""Guard rails: what a user is told of a kernel, a basis or a pool that does not fit."""
