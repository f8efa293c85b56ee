#!lua flags=allow-oom
-- Admit a writer. From here until its release no response is looked up or published.
-- KEYS  1 epoch, 2 index, 3 claim, 4 writers
-- ARGV  1 epoch, 2 incarnation, 3 mapping version, 4 token, 5 sequence numbers, 6 instance
-- Gives {1, first sequence number} or {0, reason}. The same token gets the same numbers again.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch'} end
if server.call('EXISTS', KEYS[3]) == 1 then return {0, 'claim'} end
local index = server.call('HMGET', KEYS[2], 'incarnation', 'mapping_version')
if not index[1] then return {0, 'missing'} end
if index[1] ~= ARGV[2] or index[2] ~= ARGV[3] then return {0, 'moved'} end
local before = server.call('HGET', KEYS[4], ARGV[4])
if before then return {1, tonumber(string.match(before, '^(%d+) '))} end
local first = server.call('HINCRBY', KEYS[2], 'seq', ARGV[5]) - tonumber(ARGV[5])
local now = server.call('TIME')
server.call('HSET', KEYS[4], ARGV[4],
  string.format('%.0f %s %s', first, now[1], ARGV[6]))
return {1, first}
