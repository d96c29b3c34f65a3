{{- define "hf-transformer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "hf-transformer.fullname" -}}
{{- $name := include "hf-transformer.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "hf-transformer.selectorLabels" -}}
app.kubernetes.io/name: {{ include "hf-transformer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hf-transformer.labels" -}}
{{ include "hf-transformer.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object: name and labels. */}}
{{- define "hf-transformer.metadata" -}}
name: {{ include "hf-transformer.fullname" . }}
labels:
  {{- include "hf-transformer.labels" . | nindent 2 }}
{{- end }}

{{- define "hf-transformer.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "hf-transformer.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* An image: the dictionary of its values. A digest goes before a tag. */}}
{{- define "hf-transformer.image" -}}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else if .tag }}{{ printf "%s:%s" .repository .tag }}{{ else }}{{ .repository }}{{ end }}
{{- end }}

{{- define "hf-transformer.serviceImage" -}}
{{- with .Values.image }}
{{- include "hf-transformer.image" (dict "repository" .repository "digest" .digest "tag" (default $.Chart.AppVersion .tag)) }}
{{- end }}
{{- end }}

{{- define "hf-transformer.claim" -}}
{{ default (printf "%s-models" (include "hf-transformer.fullname" .)) .Values.persistence.existingClaim }}
{{- end }}

{{/* "true" where outputs travel through shared memory. */}}
{{- define "hf-transformer.sharedMemory" -}}
{{- if and .Values.triton.enabled .Values.sharedMemory.enabled }}true{{ end }}
{{- end }}

{{/* "true" where a container of the pod reads or writes the models' volume. */}}
{{- define "hf-transformer.readsVolume" -}}
{{- $reads := .Values.triton.enabled }}
{{- if .Values.models }}
{{- range .Values.models }}{{ if not .model_id }}{{ $reads = true }}{{ end }}{{ end }}
{{- else if not .Values.model.id }}{{ $reads = true }}{{ end }}
{{- if $reads }}true{{ end }}
{{- end }}

{{/* "true" where the service itself downloads a tokenizer from the hub. */}}
{{- define "hf-transformer.usesHub" -}}
{{- $uses := false }}
{{- if .Values.models }}
{{- range .Values.models }}{{ if .model_id }}{{ $uses = true }}{{ end }}{{ end }}
{{- else if .Values.model.id }}{{ $uses = true }}{{ end }}
{{- if $uses }}true{{ end }}
{{- end }}

{{/* "true" where something writes the volume before the service reads it. */}}
{{- define "hf-transformer.fillsVolume" -}}
{{- if or .Values.download.hub.enabled .Values.download.command.enabled }}true{{ end }}
{{- end }}

{{/* "true" where Triton's release takes --allow-client-shm. */}}
{{- define "hf-transformer.allowClientSharedMemory" -}}
{{- $value := .Values.triton.allowClientSharedMemory }}
{{- if kindIs "bool" $value }}{{ if $value }}true{{ end }}
{{- else }}
{{- $release := regexFind "^[0-9]+[.][0-9]+" .Values.triton.image.tag }}
{{- if or (not $release) (semverCompare ">=26.4" (regexReplaceAll "[.]0" $release ".")) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "hf-transformer.predictorHost" -}}
{{- if .Values.triton.enabled }}
{{- if eq .Values.predictor.protocol "grpc-v2" }}127.0.0.1:8001{{ else }}127.0.0.1:8000{{ end }}
{{- else }}
{{- required "predictor.host is required where triton.enabled is false" .Values.predictor.host }}
{{- end }}
{{- end }}

{{/* The models' file, with the folder of entries that name none. */}}
{{- define "hf-transformer.modelEntries" -}}
{{- $root := . }}
{{- range .Values.models }}
{{- $entry := deepCopy . }}
{{- if not (or .model_id .model_dir) }}
{{- $_ := set $entry "model_dir" (printf "%s/%s" $root.Values.persistence.mountPath .model_name) }}
{{- end }}
{{ list $entry | toYaml }}
{{- end }}
{{- end }}

{{/* The service's arguments. */}}
{{- define "hf-transformer.args" -}}
- --strict_flags=true
{{- if .Values.models }}
- --models=/etc/hf-transformer/models.yaml
{{- else }}
{{- with .Values.model }}
- {{ printf "--model_name=%s" .name | quote }}
{{- if .id }}
- {{ printf "--model_id=%s" .id | quote }}
{{- with .revision }}
- {{ printf "--model_revision=%s" . | quote }}
{{- end }}
{{- else }}
- {{ printf "--model_dir=%s" (default (printf "%s/%s" $.Values.persistence.mountPath .name) .dir) | quote }}
{{- end }}
{{- with .task }}
- --task={{ . }}
{{- end }}
{{- end }}
{{- end }}
- --predictor_host={{ include "hf-transformer.predictorHost" . }}
- --predictor_protocol={{ .Values.predictor.protocol }}
{{- if and .Values.predictor.tls.enabled (not .Values.triton.enabled) }}
- --predictor_use_ssl=true
{{- if .Values.predictor.tls.caSecret }}
- --predictor_ca_file=/etc/hf-transformer-predictor-ca/ca.crt
{{- end }}
{{- if .Values.predictor.tls.clientSecret }}
- --predictor_cert_file=/etc/hf-transformer-predictor-client/tls.crt
- --predictor_key_file=/etc/hf-transformer-predictor-client/tls.key
{{- end }}
{{- end }}
{{- if not (include "hf-transformer.sharedMemory" .) }}
- --predictor_shared_memory=off
{{- end }}
# The pod is ready only while the model is, so it gets no request that it can't answer.
- --enable_predictor_health_check=true
# SECURITY.md derives the memory limit from these flags. gRPC's port takes memory that no flag bounds: let trusted
# clients reach it alone, or switch it off.
- --max_request_bytes={{ int64 .Values.limits.maxRequestBytes }}
- --max_bytes_in_flight={{ int64 .Values.limits.maxBytesInFlight }}
- --max_connections={{ int64 .Values.limits.maxConnections }}
- --enable_grpc={{ .Values.grpc.enabled }}
- --grace_period_seconds={{ .Values.gracePeriodSeconds }}
{{- if ne (int .Values.workers) 1 }}
- --workers={{ .Values.workers }}
{{- end }}
{{- if ne .Values.logFormat "text" }}
- --log_format={{ .Values.logFormat }}
{{- end }}
{{- if .Values.tls.enabled }}
- --ssl_certfile=/etc/hf-transformer-tls/tls.crt
- --ssl_keyfile=/etc/hf-transformer-tls/tls.key
{{- end }}
{{- if .Values.apiKeys.enabled }}
- {{ printf "--api_keys_file=/etc/hf-transformer-keys/%s" .Values.apiKeys.key | quote }}
{{- end }}
{{- if .Values.tracing.enabled }}
- {{ printf "--otlp_endpoint=%s" (required "tracing.endpoint is required" .Values.tracing.endpoint) | quote }}
- --otlp_sample_ratio={{ .Values.tracing.sampleRatio }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The hub's token, where a container talks to the hub. */}}
{{- define "hf-transformer.hubToken" -}}
{{- with .Values.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: token
{{- end }}
{{- end }}

{{/* The mount of the models' volume. */}}
{{- define "hf-transformer.modelsMount" -}}
- name: models
  mountPath: {{ .Values.persistence.mountPath }}
  {{- with .Values.persistence.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}

{{/* Secrets mounted at /etc/hf-transformer-NAME: a list of {name, secret}. */}}
{{- define "hf-transformer.secretVolumes" -}}
{{- if .Values.tls.enabled }}
- {name: tls, secret: {{ required "tls.existingSecret is required" .Values.tls.existingSecret | quote }}}
{{- end }}
{{- if .Values.apiKeys.enabled }}
- {name: keys, secret: {{ required "apiKeys.existingSecret is required" .Values.apiKeys.existingSecret | quote }}}
{{- end }}
{{- if and .Values.predictor.tls.enabled (not .Values.triton.enabled) }}
{{- with .Values.predictor.tls.caSecret }}
- {name: predictor-ca, secret: {{ . | quote }}}
{{- end }}
{{- with .Values.predictor.tls.clientSecret }}
- {name: predictor-client, secret: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Port of the predictor elsewhere: that of the address, else that of its scheme. */}}
{{- define "hf-transformer.predictorPort" -}}
{{- $port := regexFind ":[0-9]+$" (include "hf-transformer.predictorHost" .) | trimPrefix ":" }}
{{- default (or .Values.predictor.tls.enabled (hasPrefix "https://" .Values.predictor.host) | ternary "443" "80") $port }}
{{- end }}

{{- define "hf-transformer.collectorPort" -}}
{{- $url := urlParse .Values.tracing.endpoint }}
{{- default (eq $url.scheme "https" | ternary "443" "80") (regexFind ":[0-9]+$" $url.host | trimPrefix ":") }}
{{- end }}
