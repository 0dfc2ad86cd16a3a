-- A time in microseconds and a count in one value, for the parts that follow.
--
-- Redis keeps an integer of 64 bits, which has room for 19 digits, without an allocation. A time and a count together need more digits
-- than a Lua number holds exactly (2^53 has 16). So the value is built and cut as a string of 19 digits: one digit for the number of
-- digits of the count (1 to 7), the last digits of the time, the digits of the count.
--
-- The leading digits of the time that do not fit are left out, and a reader adds the leading digits that bring the time nearest to now.
-- That is ambiguous if the state lives so long, and the count has so many digits, that a time up to 256 lives away could be meant, as
-- after a clock that went back. Then the value is the text "time:count" instead.

local function read_pair(value)
  if not value or #value > 40 then return nil end
  if #value ~= 19 or not find(value, '^[1-7]%d+$') then
    local t, count = match(value, '^(%d+):(%d+)$')
    t, count = tonumber(t), tonumber(count)
    if not t or t >= 9007199254740992 or count > 9007199254740992 then return nil end
    return t, count
  end
  local digits = byte(value) - 48
  local t, count = tonumber(sub(value, 2, 19 - digits)), tonumber(sub(value, 20 - digits))
  if digits > 2 then
    local range = 10 ^ (18 - digits)
    t = now + (t - now + range / 2) % range - range / 2
  elseif t >= 9007199254740992 then
    return nil
  end
  return t, count
end

local function pair_of(t, count, lives)
  local c = format(WHOLE, count)
  if #c > 7 or lives * 256 > 5 * 10 ^ (17 - #c) then return format(WHOLE, t) .. ':' .. c end
  return #c .. sub(format(WHOLE_18, t), #c + 1) .. c
end
