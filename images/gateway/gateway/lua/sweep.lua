#!lua flags=allow-oom
-- Remove fills that have passed the expiry in their entry, before Valkey's own expiry of the key
-- would write its removal to the log. Not propagated; the flag is per script, so everything is
-- validated first and nothing durable is written here.
-- KEYS  fills
-- ARGV  1 prefix of every fill
-- Gives how many were removed, or the error of the removal.
local now = server.call('TIME')
local time = now[1] * 1000 + math.floor(now[2] / 1000)
local over = {}
for _, key in ipairs(KEYS) do
  if string.sub(key, 1, #ARGV[1]) ~= ARGV[1] then
    return server.error_reply('ERR not a fill: ' .. key)
  end
  local head = server.call('GETRANGE', key, 0, 255)
  local expiry = tonumber(string.match(head, '^%S+ %S+ %d+ %S+ (%d+)\n'))
  if head ~= '' and (not expiry or expiry <= time) then over[#over + 1] = key end
end
if #over == 0 then return 0 end
server.set_repl(server.REPL_NONE)
local removed = server.pcall('UNLINK', unpack(over))
server.set_repl(server.REPL_ALL)
return removed
