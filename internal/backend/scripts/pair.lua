-- A time in microseconds and a count in one value, for the parts that follow.
--
-- Redis keeps an integer of 64 bits without an allocation, but a time and a count need more digits than a number here
-- has. So the value is 19 digits that are cut as a string: how many digits the count has (1 to 7), the time's last
-- digits, the count. The time's missing digits are those that bring it nearest to now. Where that could be mistaken
-- were the clock to go back over up to 256 lives of the state, because it lives long and the count is large, the value is
-- "time:count".

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
