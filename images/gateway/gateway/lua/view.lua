#!lua flags=no-writes
-- The state that an answer from Qdrant is bound to.
-- KEYS  1 epoch, 2 index, 3 claim, 4 writers
-- ARGV  1 epoch
-- Gives {0, '', incarnation, generation, mapping version, active writers} or {-1, reason}.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {-1, 'epoch'} end
if server.call('EXISTS', KEYS[3]) == 1 then return {-1, 'claim'} end
local index = server.call('HMGET', KEYS[2], 'incarnation', 'generation', 'mapping_version')
if not index[1] then return {-1, 'missing'} end
return {0, '', index[1], index[2], index[3], server.call('HLEN', KEYS[4])}
