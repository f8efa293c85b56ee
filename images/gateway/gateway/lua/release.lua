#!lua flags=allow-oom
-- Release a writer and advance the index's generation, so that no earlier response is served.
-- A release whose token is already gone (a repeat, or a recovery came first) advances it too:
-- a generation too many costs a few fills, one too few would serve a stale response.
-- KEYS  1 epoch, 2 index, 3 writers
-- ARGV  1 epoch, 2 incarnation, 3 token
-- Gives {1, generation}, {0, 'epoch'} or {0, 'missing'} when the index is gone.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch'} end
if server.call('HGET', KEYS[2], 'incarnation') ~= ARGV[2] then return {0, 'missing'} end
server.call('HDEL', KEYS[3], ARGV[3])
return {1, server.call('HINCRBY', KEYS[2], 'generation', 1)}
