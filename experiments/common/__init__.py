"""What the experiments share: a corpus, a model and its training, and a study of arms and seeds."""
