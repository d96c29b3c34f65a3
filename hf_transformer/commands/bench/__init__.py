"""``hf-transformer bench``: how fast a service is, where its time goes, and which settings make it faster."""
