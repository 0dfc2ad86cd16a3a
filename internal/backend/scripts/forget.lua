-- Deletes keys of a counter.
--
-- KEYS[1]  the counter: a proxy sends the script to its server
-- KEYS[2]  and all others are deleted
-- Reply    how many there were

return redis.call('DEL', unpack(KEYS, 2))
