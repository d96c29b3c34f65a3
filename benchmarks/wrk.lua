-- Sends the requests of a file in turn, and prints what wrk has measured as one line of JSON.
-- Arguments: the file. Each request in it: a line "<bytes of the body> <bytes of its JSON part, or 0>", then the body.

local requests, last = {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  while true do
    local line = file:read("*l")
    if not line then break end
    local size, json = line:match("(%d+) (%d+)")
    local headers = { ["Content-Type"] = "application/json" }
    if json ~= "0" then
      headers["Content-Type"] = "application/octet-stream"
      headers["Inference-Header-Content-Length"] = json
    end
    requests[#requests + 1] = wrk.format("POST", nil, headers, file:read(tonumber(size)))
  end
  file:close()
end

function request()
  last = last % #requests + 1
  return requests[last]
end

function done(summary, latency, all)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
