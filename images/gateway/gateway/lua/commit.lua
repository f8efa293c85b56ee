#!lua flags=allow-oom
-- Resolve a claim after Qdrant has done its part: the index is there, or it is gone.
-- KEYS  1 epoch, 2 index, 3 claim, 4 indices, 5 writers
-- ARGV  1 epoch, 2 token, 3 kind, 4 collection, 5 index name, 6 mapping, 7 settings
-- Gives {1, ''} or {0, reason}. Safe to repeat: a commit that is already made is a success.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch'} end
local standing = server.call('HGET', KEYS[2], 'incarnation')
if server.call('HGET', KEYS[3], 'token') ~= ARGV[2] then
  if ARGV[3] == 'create' and standing == ARGV[4] then return {1, ''} end
  if ARGV[3] == 'delete' and standing ~= ARGV[4] then return {1, ''} end
  return {0, 'unclaimed'}
end
if ARGV[3] == 'create' then
  local now = server.call('TIME')
  server.call('HSET', KEYS[2], 'incarnation', ARGV[4], 'generation', 0, 'mapping_version', 1,
    'mapping', ARGV[6], 'settings', ARGV[7], 'created', now[1], 'seq', 0)
  server.call('SADD', KEYS[4], ARGV[5])
else
  server.call('DEL', KEYS[2], KEYS[5])
  server.call('SREM', KEYS[4], ARGV[5])
end
server.call('DEL', KEYS[3])
return {1, ''}
