#!/bin/sh
# Makes an authority, and a certificate for each region. The keys are readable for everybody, because the service runs as another user
# in its container: this is for a demonstration.
set -eu
cd "$(dirname "$0")"
mkdir -p certificates
cd certificates
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=regions -keyout ca.key -out ca.crt
for region in eu us; do
  openssl req -newkey rsa:2048 -nodes -subj "/CN=$region" -keyout $region.key -out $region.csr
  echo "subjectAltName=URI:spiffe://example/region/$region" > $region.ext
  openssl x509 -req -in $region.csr -days 365 -CA ca.crt -CAkey ca.key -CAcreateserial -extfile $region.ext -out $region.crt
  chmod a+r $region.key
done
