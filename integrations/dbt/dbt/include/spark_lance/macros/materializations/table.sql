{% materialization table, adapter='spark_lance', supported_languages=['sql', 'python'] %}
  {%- set language = model['language'] -%}
  {%- set grant_config = config.get('grants') -%}
  {%- set old_relation = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}

  {{ run_hooks(pre_hooks) }}

  {%- if old_relation is not none and old_relation.is_view -%}
    {% do adapter.drop_relation(old_relation) %}
  {%- endif -%}
  {%- call statement('main', language=language) -%}
    {{ create_table_as(False, target_relation, compiled_code, language) }}
  {%- endcall -%}

  {% do apply_grants(target_relation, grant_config, should_revoke(old_relation, full_refresh_mode=True)) %}
  {% do persist_constraints(target_relation, model) %}
  {% do persist_docs(target_relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}


{# The rest of a Python model: the model's DataFrame becomes a table in one commit, or a temporary view. #}
{% macro lance_python_table(compiled_code, target_relation, temporary) %}
{{ compiled_code }}

dbt = dbtObj(spark.table)
df = model(dbt, spark)
if not hasattr(df, "createOrReplaceTempView"):
    df = df.to_spark() if hasattr(df, "to_spark") else spark.createDataFrame(df)
{% if temporary -%}
df.createOrReplaceTempView("{{ target_relation.identifier }}")
{%- else -%}
df.writeTo("{{ target_relation }}").using("lance").createOrReplace()
{%- endif %}
{% endmacro %}
