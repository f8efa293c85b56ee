#!lua flags=no-writes
-- Look a response up. An entry is `epoch incarnation generation build expiry\nbody`; it is served
-- only if all of them match, it has not expired, and no writer is active.
-- KEYS  1 epoch, 2 index, 3 claim, 4 writers, 5 fill
-- ARGV  1 epoch, 2 build
-- Gives {1, entry}, {0, reason, incarnation, generation, mapping version, active writers}: go to
-- Qdrant, or {-1, reason}.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {-1, 'epoch'} end
local writers = 0
-- Mostly there is neither a claim nor a writer: one call tells.
if server.call('EXISTS', KEYS[3], KEYS[4]) > 0 then
  if server.call('EXISTS', KEYS[3]) == 1 then return {-1, 'claim'} end
  writers = server.call('HLEN', KEYS[4])
end
local index = server.call('HMGET', KEYS[2], 'incarnation', 'generation', 'mapping_version')
if not index[1] then return {-1, 'missing'} end
local function miss(reason)
  return {0, reason, index[1], index[2], index[3], writers}
end
if writers > 0 then return miss('writer') end
local entry = server.call('GET', KEYS[5])
if not entry then return miss('absent') end
local prefix = ARGV[1] .. ' ' .. index[1] .. ' ' .. index[2] .. ' ' .. ARGV[2] .. ' '
if string.sub(entry, 1, #prefix) ~= prefix then
  local epoch, incarnation, generation = string.match(entry, '^(%S+) (%S+) (%d+) ')
  if epoch ~= ARGV[1] then return miss('other_epoch') end
  if incarnation ~= index[1] then return miss('other_incarnation') end
  if generation ~= index[2] then return miss('generation') end
  return miss('build')
end
local expiry = tonumber(string.match(entry, '^(%d+)\n', #prefix + 1))
local now = server.call('TIME')
if not expiry or expiry <= now[1] * 1000 + math.floor(now[2] / 1000) then return miss('expired') end
return {1, entry}
