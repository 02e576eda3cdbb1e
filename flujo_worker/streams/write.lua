-- Append entries of one claim to a run's stream: their ids are `epoch-seq`, and `seq` has no gaps within an epoch (ADR 57).
-- KEYS: the stream, and the claims of its places. ARGV: place, number, fence, the epoch of the claim's previous write ('' before the first),
-- most entries, milliseconds until all expires, then for each entry its kind and its data.
-- Returns the epoch; nil if a later claim has the place by now, or this one has ended. A place whose claim was open is withdrawn before a later
-- claim writes; what the stream has lost since this claim's previous write is a `gap`. Without entries it is an empty claim, which a real one may follow.
local stream, claims = KEYS[1], KEYS[2]
local place, number, fence, before = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local most, expire_ms = ARGV[5], ARGV[6]
local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
local epoch, seq
if last then
    epoch, seq = string.match(last[1], '^(%d+)-(%d+)$')
else
    local time = redis.call('TIME')
    epoch, seq = string.format('%s%06d', time[1], tonumber(time[2])), 0
end
local function append(kind, n, f, data)
    seq = seq + 1
    redis.call('XADD', stream, 'MAXLEN', '~', most, string.format('%s-%d', epoch, seq), 'k', kind, 'p', place, 'n', n, 'f', f, 'd', data)
end
local known = redis.call('HGET', claims, place)
if known then
    local had_number, had_fence, state = string.match(known, '^(%d+) (%d+) (%a+)$')
    had_number, had_fence = tonumber(had_number), tonumber(had_fence)
    local is_same = had_number == number and had_fence == fence
    if had_number > number or (had_number == number and had_fence > fence) or (is_same and (state == 'ended' or state == 'withdrawn')) then
        return nil
    end
    if state == 'open' and not is_same then
        append('withdrawn', had_number, had_fence, '')
    end
end
if before ~= '' and before ~= epoch then
    append('gap', number, fence, '')
end
local state = 'open'
for i = 7, #ARGV, 2 do
    append(ARGV[i], number, fence, ARGV[i + 1])
    state = ARGV[i] == 'step_end' and 'ended' or ARGV[i] == 'withdrawn' and 'withdrawn' or 'open'
end
if #ARGV < 7 then
    state = 'empty'
end
redis.call('HSET', claims, place, string.format('%d %d %s', number, fence, state))
redis.call('PEXPIRE', stream, expire_ms)
redis.call('PEXPIRE', claims, expire_ms)
return epoch
