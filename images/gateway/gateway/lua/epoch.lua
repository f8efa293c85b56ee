#!lua flags=allow-oom
-- The catalog's epoch: a random name for this data set. A Valkey that lost its data has none, or
-- another one, and nothing that carries the old epoch is accepted any more.
-- KEYS  1 epoch
-- ARGV  1 epoch to set, 2 "create": set it where there is none; "replace": set it in any case;
--       "read": never set it
-- Gives the epoch that stands, or an empty string.
local standing = server.call('GET', KEYS[1])
if ARGV[2] == 'replace' or (ARGV[2] == 'create' and not standing) then
  server.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end
return standing or ''
