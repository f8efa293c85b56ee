#!lua
-- Publish a response as a disposable fill: it is not propagated, so it leaves no trace in the
-- append-only log. The flag is per script: everything is validated before it is set, exactly one
-- SET runs under it (in a pcall, so that its error cannot skip the next line), it is restored
-- unconditionally, and only then is the outcome looked at.
-- KEYS  1 epoch, 2 index, 3 claim, 4 writers, 5 fill
-- ARGV  1 epoch, 2 incarnation, 3 generation, 4 build, 5 time to live in ms,
--       6 ms that the key outlives its entry, so that the sweeper comes first, 7 body,
--       8 prefix of every fill
-- Gives {1, expiry in ms} or {0, reason, detail}.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch', ''} end
if server.call('EXISTS', KEYS[3]) == 1 then return {0, 'claim', ''} end
local index = server.call('HMGET', KEYS[2], 'incarnation', 'generation')
if index[1] ~= ARGV[2] then return {0, 'incarnation', ''} end
if index[2] ~= ARGV[3] then return {0, 'generation', ''} end
if server.call('EXISTS', KEYS[4]) == 1 then return {0, 'writer', ''} end
if string.sub(KEYS[5], 1, #ARGV[8]) ~= ARGV[8] then return {0, 'key', KEYS[5]} end
local now = server.call('TIME')
local expiry = now[1] * 1000 + math.floor(now[2] / 1000) + tonumber(ARGV[5])
local entry = table.concat({ARGV[1], ARGV[2], ARGV[3], ARGV[4],
  string.format('%.0f\n', expiry)}, ' ') .. ARGV[7]
local key_expiry = string.format('%.0f', expiry + tonumber(ARGV[6]))
server.set_repl(server.REPL_NONE)
local outcome = server.pcall('SET', KEYS[5], entry, 'PXAT', key_expiry)
server.set_repl(server.REPL_ALL)
if outcome.err then return {0, 'error', outcome.err} end
return {1, expiry}
