#!/usr/bin/env bash
# Five bursts of 60 requests, three of them for long answers. Prints the times to the first bytes.
rm -f ttft.txt
for burst in 1 2 3 4 5; do
  for n in $(seq 60); do
    tokens=$(( n % 20 == 3 ? 500 : 8 ))
    curl -s -o /dev/null -w '%{time_starttransfer}\n' localhost:8080/v1/chat/completions -d '{
      "model": "demo", "stream": true, "ignore_eos": true, "max_tokens": '$tokens',
      "messages": [{"role": "user", "content": "Tell me a story about fox number '$n'."}]}' >> ttft.txt &
  done
  wait
done
sort -n ttft.txt | awk '{ all[NR] = $1 } END { print "p50 " all[int(NR * .5)] " s, p95 " all[int(NR * .95)] " s" }'
