-- Compares records of limits across regions, and writes those that nobody has changed: backend.Records.
--
-- KEYS     for each record: its key, and that of the counter that it belongs to
-- ARGV     for each record: the stamp that it begins with ('': it does not exist), the value to write ('': none), and packed: the time
--          bounds in microseconds (64 bit each), how long the record lives in milliseconds (64 bit; 0: for ever), and whether it is only
--          read (1 byte)
-- Reply    the time in microseconds, then for each record '=' (written), 't' (the time is not within the bounds), '!' and the value that is
--          there, or '0' or '1' if there is none: '1' if the counter exists

local t = redis.pcall('TIME')
if t.err then return redis.error_reply('NOTIME ' .. t.err) end
local now = t[1] * 1000000 + t[2]
local reply = {string.format('%.0f', now)}
for i = 1, #KEYS / 2 do
  local key, stamp, value = KEYS[2 * i - 1], ARGV[3 * i - 2], ARGV[3 * i - 1]
  local from, to, lives, read = struct.unpack('<i8i8i8B', ARGV[3 * i])
  local has = redis.pcall('GETRANGE', key, 0, 7)
  if type(has) ~= 'string' then has = '' end -- a key of another type is overwritten
  if read == 1 or has ~= stamp then
    if has ~= '' then
      reply[i + 1] = '!' .. redis.call('GET', key)
    else
      reply[i + 1] = redis.call('EXISTS', KEYS[2 * i]) == 1 and '1' or '0'
    end
  elseif now < from or now > to then
    reply[i + 1] = 't'
  else
    if value == '' then
      -- nothing to write
    elseif lives > 0 then
      redis.call('SET', key, value, 'PX', string.format('%.0f', lives))
    else
      redis.call('SET', key, value)
    end
    reply[i + 1] = '='
  end
end
return reply
