-- Takes of many requests, where each is the only take of its counter and is settled separately: most calls under load.
--
-- ARGV[1]  after the time, for each run of counters with equal takes: how many counters (16 bit), the letter of their
--          algorithm's part, whether denied hits count (0, 1), how often each take is repeated (16 bit; 0: this only
--          reads), then the hits, the limit, p1 to p3 (64 bit each)
-- Reply    as in many.lua
--
-- Algorithms whose read may ask for other arguments are not for this part: it writes some counters before it reads others.

local RUN, RUN_SIZE = '<I2BBI2i8I8I8I8I8', 46

local function each(writes)
  local keys, from, at = KEYS, 1, 9
  while from <= counters do
    local count, shape, count_denied, times, hits, limit, p1, p2, p3 = unpack_from(RUN, packed, at)
    local read, try, write = READ[shape], TRY[shape], WRITE[shape]
    for k = from, from + count - 1 do
      local key, value = keys[k], values[k]
      local a, b, c, seen = read(key, value, p1, p2, p3, limit)
      reply[k + 1] = (#seen == 8 and EIGHT or pack('<I4', #seen)) .. seen
      local changed = moved and times > 0
      moved = nil
      if times == 1 and hits ~= 0 then
        local allowed, a2, b2, c2 = try(a, b, c, hits, limit, p1, p2, p3)
        if allowed or (allowed == false and count_denied == 1) then
          a, b, c, changed = a2, b2, c2, true
        end
      elseif hits ~= 0 then
        local added
        a, b, c, added = repeated(try, times, count_denied, a, b, c, hits, limit, p1, p2, p3)
        changed = changed or added
      end
      if changed and writes then write(key, value, a, b, c, p1, p2, p3) end
    end
    from, at = from + count, at + RUN_SIZE
  end
end

local written, err = pcall(each, true)
if not written then
  if not full(err) then error(err, 0) end
  each(false)
  reply[counters + 2] = '!'
end
return table.concat(reply)
