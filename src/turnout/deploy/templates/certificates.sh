#!/bin/sh
# Certificates for TLS and keys for devices, with openssl and ssh-keygen.
#   sh certificates.sh server HOST [HOST ...]   an authority, and the server's certificate for these names or addresses
#   sh certificates.sh device NAME              a device's keys: NAME.key stays on it, NAME.key.pub goes to the server
set -e
mkdir -p certificates
cd certificates
case "$1" in
server)
    shift
    names=""
    for host in "$@" localhost 127.0.0.1; do
        case "$host" in *[!0-9.]*) names="$names,DNS:$host" ;; *) names="$names,IP:$host" ;; esac
    done
    [ -f ca.key ] || openssl req -x509 -newkey rsa:4096 -nodes -days 3650 -subj "/CN=turnout authority" \
        -keyout ca.key -out ca.crt 2>/dev/null
    openssl req -newkey rsa:4096 -nodes -subj "/CN=turnout server" -keyout server.key -out server.csr 2>/dev/null
    printf 'subjectAltName=%s\n' "${names#,}" > server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile server.ext \
        -out server.crt 2>/dev/null
    rm -f server.csr server.ext
    echo "certificates/ca.crt goes to every device; server.crt and server.key stay here" ;;
device)
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$2" -f "$2.key"
    echo "certificates/$2.key stays on the device; certificates/$2.key.pub goes to the server" ;;
*)
    echo "sh certificates.sh server HOST ... | device NAME"
    exit 2 ;;
esac
