"""The AOF crash proof: the gateway's own Lua scripts, from the built images, on real servers."""
