{% materialization clone, adapter='spark_lance' -%}
  {%- if not defer_relation -%}
    {{ log("No relation found in state manifest for " ~ model.unique_id, info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- set existing_relation = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- if (existing_relation and not flags.FULL_REFRESH) or target_relation.render() == defer_relation.render() -%}
    {{ log("Relation " ~ this ~ " already exists", info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}
  {%- set source_relation = load_cached_relation(defer_relation) -%}

  {%- if source_relation and source_relation.is_table -%}
    {%- if existing_relation is not none and existing_relation.is_view -%}
      {% do adapter.drop_relation(existing_relation) %}
    {%- endif -%}
    {% call statement('main') %}
      {{ create_or_replace_clone(target_relation, defer_relation) }}
    {% endcall %}
  {%- else -%}
    {%- set target_relation = this.incorporate(type='view') -%}
    {% call statement('main') %}
      {{ get_create_view_as_sql(target_relation, "select * from " ~ defer_relation) }}
    {% endcall %}
  {%- endif -%}

  {% do persist_docs(target_relation, model) %}
  {{ return({'relations': [target_relation]}) }}
{%- endmaterialization %}
