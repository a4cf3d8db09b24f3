"""What a trained recommender shows to whom: retrieve, hydrate, filter, score, select."""
