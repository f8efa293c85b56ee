#!lua flags=allow-oom
-- Put a larger mapping in place of the one that an admitted writer has read.
-- KEYS  1 epoch, 2 index, 3 writers
-- ARGV  1 epoch, 2 incarnation, 3 token, 4 mapping version that was read, 5 mapping
-- Gives {1, mapping version} or {0, reason}. Safe to repeat.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch'} end
local index = server.call('HMGET', KEYS[2], 'incarnation', 'mapping_version', 'mapping')
if index[1] ~= ARGV[2] then return {0, 'missing'} end
if server.call('HEXISTS', KEYS[3], ARGV[3]) == 0 then return {0, 'unadmitted'} end
local next_version = tonumber(ARGV[4]) + 1
if tonumber(index[2]) == next_version and index[3] == ARGV[5] then return {1, next_version} end
if index[2] ~= ARGV[4] then return {0, 'moved'} end
server.call('HSET', KEYS[2], 'mapping', ARGV[5], 'mapping_version', next_version)
return {1, next_version}
