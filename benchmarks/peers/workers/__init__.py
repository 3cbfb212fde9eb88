"""One process for each contender, each in the environment that has its library."""
