"""The part of Elasticsearch 8's REST API that applications use, over Qdrant and Valkey."""
