-- Decides the remaining takes, writes each book and counter that has changed once, and replies.

local decided, reason = pcall(function()
  for _, book in pairs(open) do
    read_book(book)
    settle(book)
  end
  for _, o in ipairs(left) do answers[o.answer] = alone(o) end
  local from = 9
  for _, g in ipairs(groups) do
    decide(packed, from, g.first - SIZE)
    said = said + 1
    answers[said] = group(g)
    from = g.last + SIZE
  end
  decide(packed, from, #packed)
end)
if not decided then return failed(reason) end

local written, err = pcall(function()
  for j, book in pairs(open) do
    if book.large then
      LARGE.write_removed(book)
    elseif book.shrinks or next(book.changed) then
      close(book)
    end
  end
  for j in pairs(removes) do -- first, because it needs no memory
    if anew[j] ~= nil and not (open[j] and open[j].grows) then
      put(j)
      anew[j] = nil
    end
  end
  for j in pairs(anew) do
    local book = open[j]
    if book and book.grows then LARGE.grow(book) else put(j) end
  end
  wrote = true
  for k = 1, counters do
    local shape = touched[k]
    if shape then WRITE[shape](KEYS[k], values[k], A[k], B[k], C[k], P1[k], P2[k], P3[k]) end
  end
  for j, book in pairs(open) do
    if book.large then
      LARGE.write(book)
    elseif book.shrinks and not book.grows then
      LARGE.shrink(book)
    end
    -- A record that is to be released is needed as long as its counter.
    if book.release and not book.large and sizes[j] > 0 and next(book.changed) then
      local lives = redis.call('PTTL', KEYS[book.k])
      if redis.call('PTTL', KEYS[counters + j]) < lives then
        redis.call('PEXPIRE', KEYS[counters + j], number(lives + EXTRA / 1000))
      end
    end
  end
end)
if not written then
  if not full(err) then return failed(err) end
  answers[said + 1] = '!'
end
return table.concat(reply) .. table.concat(answers)
