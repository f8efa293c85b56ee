#!lua flags=allow-oom
-- Claim an index name before Qdrant is touched. An unresolved claim stays and blocks the name.
-- KEYS  1 epoch, 2 index, 3 claim, 4 indices
-- ARGV  1 epoch, 2 "create" or "delete", 3 token, 4 collection (create), 5 instance,
--       6 most indices
-- Gives {1, collection} or {0, reason, detail}. The same token gets the same answer again.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch', ''} end
local claim = server.call('HMGET', KEYS[3], 'token', 'collection', 'kind', 'instance')
if claim[1] then
  if claim[1] == ARGV[3] then return {1, claim[2]} end
  return {0, 'claimed', claim[3] .. ' by ' .. claim[4]}
end
local collection = server.call('HGET', KEYS[2], 'incarnation')
if ARGV[2] == 'create' then
  if collection then return {0, 'exists', collection} end
  if server.call('SCARD', KEYS[4]) >= tonumber(ARGV[6]) then return {0, 'full', ARGV[6]} end
  collection = ARGV[4]
elseif not collection then
  return {0, 'missing', ''}
end
local now = server.call('TIME')
server.call('HSET', KEYS[3], 'token', ARGV[3], 'kind', ARGV[2], 'collection', collection,
  'instance', ARGV[5], 'at', now[1])
return {1, collection}
