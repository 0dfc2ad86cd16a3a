-- The start of every script: the clock.
--
-- KEYS     the counters, each once
-- ARGV[1]  packed, little-endian: the time in microseconds (64 bit; 0: this server's clock decides), then the
--          arguments of the script's last part (one.lua, each.lua, many.lua)
-- Reply    the time (64 bit), then the states as they were; the caller runs the Go arithmetic on them to find the
--          outcomes, and nothing else is computed here. A negative time means that nothing was done, and that the
--          caller has to call again with better arguments: see `again`.
--
-- All numbers are at most 2^53, up to where Lua's arithmetic is exact, and no limit is larger than 2^53 - 1. A sum that is
-- larger is rounded, but it stays on its side of every limit. The Go functions of package backend define the
-- results; every part here computes the same with the same integers.

local pack, unpack_from = struct.pack, struct.unpack

local packed = ARGV[1]
local now = unpack_from('<I8', packed)
local caller_clock = now > 0
if not caller_clock then
  local t = redis.pcall('TIME')
  if t.err then return redis.error_reply('NOTIME ' .. t.err) end
  now = t[1] * 1000000 + t[2]
end
