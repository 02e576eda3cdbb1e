-- Append entries of claims to their runs' streams: ids are `epoch-seq`, and `seq` has no gaps within an epoch (ADR 57).
-- KEYS, for each claim: the stream, and the claims of its places. ARGV: most entries of a stream, milliseconds until all expires; then for each
-- claim `number fence epoch kinds place`, and the data of its entries that have any, whose kinds end with a plus: few arguments, because clients pack
-- each of them. `epoch` is that of the claim's previous write, 0 before the first; `kinds` are those of its entries, each with a comma.
-- Returns for each claim the epoch; nil if a later claim has the place by now, or this one has ended. A place whose claim was open is withdrawn before
-- a later claim writes, except a question (fence 0) by the claim that has its answer; what the stream has lost since the claim's previous write is a
-- `gap`. Without entries it is an empty claim, which a real one may follow.
local most, expire_ms = ARGV[1], ARGV[2]
local at = 3

local function write(stream, claims)
    local number, fence, before, kinds, place = string.match(ARGV[at], '^(%d+) (%d+) (%d+) (%S*) (.*)$')
    number, fence, at = tonumber(number), tonumber(fence), at + 1
    local entries = {}
    for kind, has_data in string.gmatch(kinds, '([%a_]+)(%+?),') do
        entries[#entries + 1] = {kind, has_data == '' and '' or ARGV[at]}
        at = has_data == '' and at or at + 1
    end
    local epoch, seq
    local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if newest then
        epoch, seq = string.match(newest[1], '^(%d+)-(%d+)$')
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
            return false
        end
        local is_answer = had_number == number and had_fence == 0
        if state == 'open' and not is_same and not is_answer then
            append('withdrawn', had_number, had_fence, '')
        end
    end
    if before ~= '0' and before ~= epoch then
        append('gap', number, fence, '')
    end
    local state = 'empty'
    for _, entry in ipairs(entries) do
        append(entry[1], number, fence, entry[2])
        state = entry[1] == 'step_end' and 'ended' or entry[1] == 'withdrawn' and 'withdrawn' or 'open'
    end
    redis.call('HSET', claims, place, string.format('%d %d %s', number, fence, state))
    redis.call('PEXPIRE', stream, expire_ms)
    redis.call('PEXPIRE', claims, expire_ms)
    return epoch
end

local epochs = {}
for i = 1, #KEYS, 2 do
    epochs[#epochs + 1] = write(KEYS[i], KEYS[i + 1])
end
return epochs
