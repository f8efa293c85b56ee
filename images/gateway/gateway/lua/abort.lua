#!lua flags=allow-oom
-- Give a claim back without an effect on the catalog.
-- KEYS  1 epoch, 2 claim
-- ARGV  1 epoch, 2 token
-- Gives {1, ''}, also when this claim is gone already, or {0, 'epoch'}.
if server.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'epoch'} end
if server.call('HGET', KEYS[2], 'token') == ARGV[2] then server.call('DEL', KEYS[2]) end
return {1, ''}
