"""The Lua scripts that run in Valkey, one script a file."""
