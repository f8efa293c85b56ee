"""Part of Qdrant's REST API in front of qdrant-edge-py, Qdrant's embedded storage engine."""
