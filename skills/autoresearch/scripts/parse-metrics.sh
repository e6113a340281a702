#!/bin/sh
# Read the output of a benchmark on stdin and print its metrics, as the lines `METRIC name=value` have them, as one JSON
# object on one line: {"val_bpb":0.993,"peak_memory_mb":44200}. Of a metric that is printed twice the last value counts;
# what is no finite number is passed over, and progress bars that rewrite their line with \r are no obstacle.
#
#   bash autoresearch.sh 2>&1 | bash parse-metrics.sh             all metrics
#   bash autoresearch.sh 2>&1 | bash parse-metrics.sh val_bpb     the value of one of them
#
# Prints nothing and exits 1 where there is no such line: the run has crashed, look at the end of its log.
set -eu
if [ "$#" -gt 1 ]; then
    echo "usage: parse-metrics.sh [METRIC] < output" >&2
    exit 2
fi

tr '\r' '\n' | LC_ALL=C wanted="${1-}" awk '
    # A number of JSON: no +, digits on both sides of the point, no needless zeros before it.
    function plain(text,    sign, mantissa, exponent, at) {
        sub(/^\+/, "", text)
        sign = sub(/^-/, "", text) ? "-" : ""
        at = match(text, /[eE]/)
        exponent = at ? substr(text, at) : ""
        mantissa = at ? substr(text, 1, at - 1) : text
        if (mantissa ~ /^\./) mantissa = "0" mantissa
        sub(/\.$/, "", mantissa)
        sub(/^0+/, "", mantissa)
        if (mantissa == "" || mantissa ~ /^\./) mantissa = "0" mantissa
        return sign mantissa exponent
    }
    /^METRIC[ \t]+[^ \t="\\]+=[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$/ {
        line = $0
        sub(/^METRIC[ \t]+/, "", line)
        sub(/[ \t]+$/, "", line)
        at = index(line, "=")
        name = substr(line, 1, at - 1)
        value = substr(line, at + 1)
        number = value + 0
        if (number > 1.79e308 || number < -1.79e308) next
        if (name ~ /[\001-\037\177]/) next
        if (!(name in values)) names[++count] = name
        values[name] = plain(value)
    }
    END {
        wanted = ENVIRON["wanted"]
        if (wanted != "") {
            if (!(wanted in values)) exit 1
            print values[wanted]
            exit 0
        }
        if (!count) exit 1
        printf "{"
        for (i = 1; i <= count; i++) printf "%s\"%s\":%s", (i > 1 ? "," : ""), names[i], values[names[i]]
        print "}"
    }
'
