-- Decides one take, which is the most common call, or several identical takes of one counter. one_read.lua has read it.
--
-- Reply    after the time: the state as it was, if these scripts wrote it

local a, b, c, seen = read(key, value, p1, p2, p3, limit)
if again then return pack('<i8I4', -now, again) end
local changed, any = false, false
if hits ~= 0 then
  a, b, c, changed, any = repeated(try, times, count_denied, a, b, c, hits, limit, p1, p2, p3)
end
if any then
  write(key, value, a, b, c, p1, p2, p3)
elseif changed or (moved and times > 0) then
  -- A denial holds whether or not there is memory to count it.
  local written, err = pcall(write, key, value, a, b, c, p1, p2, p3)
  if not written and not full(err) then error(err, 0) end
end
return pack('<I8', now) .. seen
