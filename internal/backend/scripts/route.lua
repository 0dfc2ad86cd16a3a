-- Tells whether keys lead to one server: a proxy sends a script to the server of its first key. All calls of a probe have the
-- same second key and different marks; calls that reach the same server return the same mark.
--
-- KEYS[1]  decides where the script runs
-- KEYS[2]  has the first mark that this server was given
-- ARGV[1]  the mark of this call
-- Reply    the first mark

local mark = redis.call('GET', KEYS[2])
if not mark then
  mark = ARGV[1]
  redis.call('SET', KEYS[2], mark, 'PX', 10000)
end
return mark
