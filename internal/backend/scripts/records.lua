-- Compares records of limits across regions, and writes those that nobody has changed: backend.Records.
--
-- KEYS     for each record: the counter that it belongs to, and the record
-- ARGV     for each record: the stamp that it begins with ('': it does not exist), the value to write ('': none), and packed: the time
--          bounds in microseconds, how long the record lives in milliseconds (0: for ever), what the value takes in of what was
--          taken since the stamp, the most that may have been taken besides (64 bit each), and whether it is only read (1 byte)
-- Reply    the time in microseconds, then for each record '=' (written) and what was taken besides (64 bit), 't' (the time is not within
--          the bounds), '!' and the value that is there, or '0' or '1' if there is none: '1' if the counter exists

local t = redis.pcall('TIME')
if t.err then return redis.error_reply('NOTIME ' .. t.err) end
local now = t[1] * 1000000 + t[2]
local reply = {string.format('%.0f', now)}
for i = 1, #KEYS / 2 do
  local key, stamp, value = KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1]
  local from, to, lives, taken, most, read = struct.unpack('<i8i8i8i8i8B', ARGV[3 * i])
  local has = redis.pcall('GETRANGE', key, 0, 15)
  if type(has) ~= 'string' then
    if not string.find(has.err, 'WRONGTYPE', 1, true) then return redis.error_reply(has.err) end -- no right: the record may exist
    has = '' -- a key of another type is overwritten
  end
  local more = #has == 16 and struct.unpack('<i8', has, 9) - taken or 0
  if read == 1 or string.sub(has, 1, 8) ~= stamp or (value ~= '' and (more < 0 or more > most)) then
    if has ~= '' then
      reply[i + 1] = '!' .. redis.call('GET', key)
    else
      reply[i + 1] = redis.call('EXISTS', KEYS[2 * i - 1]) == 1 and '1' or '0'
    end
  elseif now < from or now > to then
    reply[i + 1] = 't'
  else
    local carried = struct.pack('<i8', more)
    if value ~= '' then
      value = string.sub(value, 1, 8) .. carried .. string.sub(value, 17)
      if lives > 0 then
        redis.call('SET', key, value, 'PX', string.format('%.0f', lives))
      else
        redis.call('SET', key, value)
      end
    end
    reply[i + 1] = '=' .. carried
  end
end
return reply
