-- Writes each counter that has changed once, and replies.

if again then return pack('<i8I4', -now, again) end
local written, err = pcall(function()
  for k = 1, counters do
    local shape = touched[k]
    if shape then WRITE[shape](KEYS[k], values[k], A[k], B[k], C[k], P1[k], P2[k], P3[k]) end
  end
end)
if not written then
  if not full(err) then error(err, 0) end
  reply[counters + 2] = '!'
end
return table.concat(reply)
